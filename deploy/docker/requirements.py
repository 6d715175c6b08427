"""What raygpu needs, a line each, with these of its extras: python requirements.py torch < pyproject.toml"""

import sys
import tomllib

project = tomllib.load(sys.stdin.buffer)["project"]
wanted = [*project["dependencies"]]
for extra in sys.argv[1:]:
    wanted += project["optional-dependencies"][extra]
print(*wanted, sep="\n")
