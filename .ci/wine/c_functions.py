"""The functions of C that wine 8's ``ucrtbase.dll`` lacks, without which NumPy and HDF5 stop.

    python c_functions.py UCRTBASE FOLDER_OF_PACKAGES FOLDER_OF_PYTHON

Makes a library that has these functions and forwards all others to wine's, and changes what is
in the packages to import it in the place of Microsoft's names.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MATH, RUNTIME = b"api-ms-win-crt-math-l1-1-0.dll", b"api-ms-win-crt-runtime-l1-1-0.dll"
OWN = b"npzkit-functions-of-c.dll"  # not longer than these
OF_ONE = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cos",
    "cosh",
    "exp",
    "log",
    "proj",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
]
TO_REAL = ["abs", "arg", "imag", "real"]


def exported(library):
    """Return the names that a library has."""
    command = ["x86_64-w64-mingw32-objdump", "-p", library]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    table = text[text.index("[Ordinal/Name Pointer] Table") :]
    line = r"^\s*\[\s*\d+\](?: \+base\[\s*\d+\])?\s+(?:[0-9a-f]{4,}\s+)?([A-Za-z_]\w*)\s*$"
    return set(re.findall(line, table, re.MULTILINE))


def functions():
    """Return each function by its name, in C, for double, float and long double (a double)."""
    found = {}
    for suffix, real in (("", "double"), ("f", "float"), ("l", "double")):
        # Microsoft passes a complex number as a structure of two.
        kind, inner = f"struct {real}_pair", "f" if real == "float" else ""
        number = "__builtin_complex({0}.r, {0}.i)".format
        made = f"{kind} o = {{creal{inner}(z), cimag{inner}(z)}}; return o;"
        for name in OF_ONE:
            call = f"{real} complex z = c{name}{inner}({number('a')});"
            found[f"c{name}{suffix}"] = f"{kind} NAME({kind} a) {{ {call} {made} }}"
        for name in TO_REAL:
            call = f"return c{name}{inner}({number('a')});"
            found[f"c{name}{suffix}"] = f"{real} NAME({kind} a) {{ {call} }}"
        call = f"{real} complex z = conj{inner}({number('a')});"
        found[f"conj{suffix}"] = f"{kind} NAME({kind} a) {{ {call} {made} }}"
        call = f"{real} complex z = cpow{inner}({number('a')}, {number('b')});"
        found[f"cpow{suffix}"] = f"{kind} NAME({kind} a, {kind} b) {{ {call} {made} }}"
    # Wine's fesetenv resets all that is about floating point if it is given zeros.
    found["feholdexcept"] = "int NAME(unsigned long *env) { env[0] = env[1] = 0; return 0; }"
    return found


def main():
    """Make the library, and have the packages import it."""
    ucrtbase, packages, python = sys.argv[1:]
    own = functions()
    pairs = "".join(f"struct {real}_pair {{ {real} r, i; }};\n" for real in ("double", "float"))
    code = [text.replace("NAME", f"own_{name}") for name, text in own.items()]
    forwarded = [f"  {name} = ucrtbase.{name}" for name in sorted(exported(ucrtbase) - set(own))]
    names = [f"  {name} = own_{name}" for name in sorted(own)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "a.c").write_text("\n".join(["#include <complex.h>", pairs, *code, ""]))
        head = [f"LIBRARY {OWN.decode()}", "EXPORTS"]
        (folder / "a.def").write_text("\n".join([*head, *forwarded, *names, ""]))
        command = ["x86_64-w64-mingw32-gcc", "-O1", "-shared", "-static-libgcc", "-o", OWN.decode()]
        subprocess.run([*command, "a.c", "a.def"], cwd=folder, check=True)
        shutil.copy(folder / OWN.decode(), python)
    for path in (one for end in ("*.pyd", "*.dll") for one in Path(packages).rglob(end)):
        data = path.read_bytes()
        for name in [MATH, RUNTIME] if b"feholdexcept" in data else [MATH]:
            data = data.replace(name, OWN.ljust(len(name), b"\0"))
        path.write_bytes(data)


main()
