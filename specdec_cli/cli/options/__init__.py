"""Options of all subcommands, each declared once, in groups that make settings of themselves.

`declare` says how, and hands them to Typer; `models`, `decoding` and `output` hold what several subcommands take. What
one subcommand alone takes stands in its module.
"""
