"""Records of what happened: counted, timed, and with the machine named."""
