"""Built-in models, written in the same way as users' models; `--model mnist` uses one."""
