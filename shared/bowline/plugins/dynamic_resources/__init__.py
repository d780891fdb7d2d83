"""Resource claims (DRA): plugin `dynamic_resources`. ``admission`` has its methods of the webhook, ``plugin`` all."""
