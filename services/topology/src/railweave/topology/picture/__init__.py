"""The fabric to look at: a tree in text, a picture as SVG, a graph for Graphviz. Pure."""
