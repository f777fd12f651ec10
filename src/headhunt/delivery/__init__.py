"""How a model leaves home: as a folder for others, as a graph, as a service, over a corpus."""
