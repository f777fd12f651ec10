"""Everything an exported model needs: the head as data, as modules, and as a transformers model.

These files import only torch, transformers and each other, so that they can travel with a saved model.
"""
