"""The service of `raygpu up`: a local Ray that stays, with workers that have imported their libraries already."""
