def placement_group(bundles, strategy="PACK"):
    """Rewrites what it is given, as the real one does."""
    for bundle in bundles:
        bundle["CPU"] = bundle.pop("CPU") * 1000
    return strategy, bundles
