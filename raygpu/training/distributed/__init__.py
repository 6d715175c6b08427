"""One model trained over several devices, each with its share of every batch, in torch and in Keras."""
