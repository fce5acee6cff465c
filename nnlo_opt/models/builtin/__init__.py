"""Built-in models, written as users write theirs: `--model mnist`."""
