"""One Keras model trained alone, and several on logical devices of one process."""
