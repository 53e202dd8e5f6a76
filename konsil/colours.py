"""The colours of pictures and pages."""

# Okabe and Ito's palette, which people with any colour vision can tell apart.
FIXED_COLOURS = {
    "centralized": "#000000",
    "local": "#8C8C8C",
    "fedavg": "#0072B2",
    "fedsm": "#D55E00",
    "fedsoup": "#009E73",
}
FURTHER_COLOURS = ("#CC79A7", "#56B4E9", "#E69F00", "#8C6D31", "#6A51A3", "#B8A800", "#7B3294")
# Bright enough for photographs; in the order of the task's structures.
STRUCTURE_COLOURS = ("#00E5FF", "#FFE800", "#FF5CF4", "#7CFF4F", "#FFFFFF", "#FF9A3C")


def structure_colour(number: int) -> str:
    """The colour of a structure, by its place in the task."""
    return STRUCTURE_COLOURS[number % len(STRUCTURE_COLOURS)]
