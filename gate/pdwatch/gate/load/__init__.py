"""`pdwatch load`: a plan from options, the run, and its figures for people and for programs."""
