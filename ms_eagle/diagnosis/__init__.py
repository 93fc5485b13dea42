"""Why acceptance is low: a head held against its teacher on fixed texts."""
