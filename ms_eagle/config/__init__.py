"""The configuration: its sections, and YAML files read strictly."""
