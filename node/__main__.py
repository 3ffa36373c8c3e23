"""`python -m node` is the `regrow` command."""

from node.cli.main import run

if __name__ == "__main__":
    run()
