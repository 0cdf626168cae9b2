"""One module for each paper: its experiments, with the place in the paper of every published figure."""
