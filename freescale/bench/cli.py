"""The command line: one module per verb, imported only when it is used; errors printed once, in one line."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from analyzer.errors import AnalyzerError
from freescale.errors import FreeScaleError

VERBS = ("run", "ablate", "analyze", "compare", "report", "dashboard", "workloads", "simulate", "calibrate", "doctor")


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(f"freescale.bench.{cmd_name}").command
        return command


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="freescale-bench")
def cli() -> None:
    """Find, explain and remove the bubbles in distributed training of sequence recommendation models."""


def main() -> None:
    """Entry point: exit code 0 ok, 1 failed, 2 wrong usage."""
    try:
        exit_code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        exit_code = error.exit_code
    except (FreeScaleError, AnalyzerError) as error:
        click.echo(f"error: {error}", err=True)
        exit_code = 1
    except (KeyboardInterrupt, click.Abort):
        click.echo("error: interrupted", err=True)
        exit_code = 1
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output is gone; nobody is left to tell
        exit_code = 1
    sys.exit(exit_code)


if __name__ == "__main__":
    main()
