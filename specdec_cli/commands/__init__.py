"""One module or package a subcommand; each joins the parts and owns no logic of its own."""
