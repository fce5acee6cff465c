"""Results of a run: best model, ensemble, trained models, reports."""
