"""The binding cycle of one BindRequest: read its state, run an attempt, wait, complete or fail, write the result."""
