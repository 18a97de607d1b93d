"""These scripts are for environments of their own, which `make test-wheel` builds; pytest has nothing to collect here."""

collect_ignore_glob = ["*.py"]
