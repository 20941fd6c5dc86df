class PlacementGroupSchedulingStrategy:
    def __init__(self, group):
        self.group = group
