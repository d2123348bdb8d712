"""The run's configuration: pydantic models with the article's YAML keys. No torch here."""
