def names(run):
    return []


def draw(run, records, folder):
    return []
