"""`python -m raygpu.report`: the command `raygpu report`, whose module is `write_report`.

For `python -m` alone: an imported submodule `report` would stand in the place of the function `raygpu.report`.
"""

import sys

if __name__ != "__main__":
    raise ImportError("raygpu.report is a function; the command's module is raygpu.write_report")

from raygpu.write_report import main

sys.exit(main())
