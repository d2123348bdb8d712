"""What a run tells: named metrics, files, a live console, plots, a summary, and warnings. No torch."""
