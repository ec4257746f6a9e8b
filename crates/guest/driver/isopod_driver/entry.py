"""Parses the command line and runs the mode it names. Every mode returns an exit status."""

import argparse
import socket

from . import bridge, forkserver, specs, warm, zygote


def main(arguments):
    options = parse(arguments)
    return options.run(options)


def parse(arguments):
    parser = argparse.ArgumentParser(prog="run.py", description="Isopod's interpreter driver")
    modes = parser.add_subparsers(dest="mode", required=True)

    # The guest and the driver of a template may be of different versions, so this mode keeps its first name.
    mode = modes.add_parser("mother", help="fork Python kernels on request")
    mode.add_argument("--fd", type=int, required=True)
    mode.add_argument("--warm", choices=warm.LEVELS, default="shell")
    mode.set_defaults(run=run_forkserver)

    mode = modes.add_parser("zygote", help="make forkservers inside sandboxes")
    mode.add_argument("--fd", type=int, required=True)
    mode.add_argument("--warm", choices=warm.LEVELS, default="full")
    mode.set_defaults(run=run_zygote)

    mode = modes.add_parser("jupyter", help="speak for a Jupyter kernel")
    mode.add_argument("language")
    mode.add_argument("--fd", type=int, default=3)
    mode.set_defaults(run=run_bridge)

    mode = modes.add_parser("kernels", help="print the languages that have a Jupyter kernel")
    mode.set_defaults(run=lambda _: specs.print_list())
    return parser.parse_args(arguments)


def run_forkserver(options):
    return forkserver.serve(own_socket(options.fd), warm.prepare(options.warm))


def run_zygote(options):
    return zygote.serve(own_socket(options.fd), warm.prepare(options.warm))


def run_bridge(options):
    return bridge.serve(own_socket(options.fd), options.language)


def own_socket(fd):
    """Wraps the descriptor in a socket that is closed on exec."""
    connection = socket.socket(fileno=fd)
    connection.set_inheritable(False)
    return connection
