"""These scripts are for environments of their own, which `make test-wheel` builds; pytest collects none of them."""

collect_ignore_glob = ["*.py"]
