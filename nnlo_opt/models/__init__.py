"""Built-in models, and what a model module may import: `composite` and `data_files`."""
