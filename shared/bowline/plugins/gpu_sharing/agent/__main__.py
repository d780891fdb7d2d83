"""Entry point of the agent."""

from bowline.plugins.gpu_sharing.agent.app import main

if __name__ == "__main__":
    main()
