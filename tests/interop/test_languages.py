"""The code on the guide's page for colleagues without Python reads what npzkit wrote.

It is taken from `npzkit/guide/languages.md`. For each language there is a program that calls it with
files and keys, and prints a line for each array: file, key, shape, whether the values are column by
column, and the values. A language that is not installed is skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import npzkit
import numpy as np
import pytest

READERS_FOLDER = Path(__file__).parent / "readers"
PAGE = (Path(npzkit.__file__).parent / "guide" / "languages.md").read_text(encoding="utf-8")
SNIPPETS = dict(re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
ARRAYS = {
    "x": np.arange(6.0).reshape(2, 3) / 8,
    "fortran": np.asfortranarray(np.arange(24, dtype="f4").reshape(2, 3, 4)),
    "i8": np.array([-1, 2**40, -(2**40), 2**31, 0], "i8"),
    "i4": np.array([[-(2**31), 2**31 - 1]], "i4"),
    "u2": np.array([65535, 1], "u2"),
    "i1": np.array([-128, 127], "i1"),
    "b": np.array([[True], [False]]),
    "scalar": np.array(3.5),
    "empty": np.zeros((2, 0)),
    "large": np.arange(200_000.0).reshape(-1, 2),  # several chunks
    "c": np.array([[1 + 2j, 3 - 4j]]),
}
NUMBERS = tuple(ARRAYS)
REAL = NUMBERS[:-1]
DOUBLES = ("x", "scalar", "empty", "large")

# -- programs that call the code of the page -----------------------------------------------------

CPP = """
#include "snippet.h"

int main(int, char **words) {
    for (char **key = words + 2; *key; key++) {
        std::vector<double> values = read(words[1], *key);
        cnpy::NpyArray array = cnpy::npz_load(words[1]).at(*key);
        std::cout.precision(17);
        std::cout << *key << '\\t';
        for (size_t length : array.shape) std::cout << length << ' ';
        std::cout << "\\tfalse\\t";
        for (double value : values) std::cout << value << ' ';
        std::cout << '\\n';
    }
}
"""
R = """
words <- commandArgs(TRUE)
for (key in words[-1]) {
  array <- read_npz(words[1], key)
  shape <- if (is.null(dim(array))) length(array) else dim(array)
  values <- paste(format(as.numeric(array), digits = 17, trim = TRUE), collapse = " ")
  cat(key, paste(shape, collapse = " "), "true", values, sep = "\\t")
  cat("\\n")
}
"""
OCTAVE = """
words = argv();
folder = [words{1} ' unzipped'];
unzip(words{1}, folder);
for n = 2:numel(words)
  array = read_npy(fullfile(folder, [words{n} '.npy']));
  printf('%s\\t%s\\ttrue\\t%s\\n', words{n}, num2str(size(array)), sprintf('%.17g ', double(array)));
end
"""
JAVASCRIPT = """
import { readNpz } from "./snippet.mjs";

const [path, ...keys] = process.argv.slice(2);
const arrays = readNpz(path);
for (const key of keys) {
  const { data, shape, fortranOrder } = arrays[key];
  console.log([key, shape.join(" "), fortranOrder, Array.from(data, Number).join(" ")].join("\\t"));
}
"""
JAVA = """
import java.util.Arrays;
import java.util.stream.*;

public class Main {
    static Object value(java.nio.ByteBuffer data, String type) {
        return switch (type) {
            case "f8", "c16" -> data.getDouble();
            case "f4" -> data.getFloat();
            case "i8" -> data.getLong();
            case "i4" -> data.getInt();
            case "u2" -> data.getShort() & 65535;
            default -> data.get();
        };
    }

    public static void main(String[] words) throws Exception {
        for (String key : Arrays.copyOfRange(words, 1, words.length)) {
            Npz npz = Npz.read(words[0], key);
            StringBuilder values = new StringBuilder();
            while (npz.data().hasRemaining()) values.append(value(npz.data(), npz.type())).append(" ");
            String shape = Arrays.stream(npz.shape()).mapToObj(Integer::toString)
                .collect(Collectors.joining(" "));
            System.out.println(String.join("\\t", key, shape, "" + npz.fortranOrder(), values));
        }
    }
}
"""
GO = """
package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

func show[T any](path, key, descr string) {
	values, header, err := ReadNpz[T](path, key, descr)
	if err != nil {
		panic(err)
	}
	shape := regexp.MustCompile(`\\((.*)\\)`).FindStringSubmatch(header)[1]
	order := strings.Contains(header, "'fortran_order': True")
	text := strings.Trim(fmt.Sprint(values), "[]")
	fmt.Printf("%s\\t%s\\t%v\\t%s\\n", key, strings.ReplaceAll(shape, ",", " "), order, text)
}

func main() {
	path := os.Args[1]
	for _, key := range os.Args[2:] {
		switch key {
		case "fortran":
			show[float32](path, key, "<f4")
		case "i8":
			show[int64](path, key, "<i8")
		case "i4":
			show[int32](path, key, "<i4")
		case "u2":
			show[uint16](path, key, "<u2")
		case "i1":
			show[int8](path, key, "|i1")
		case "b":
			show[bool](path, key, "|b1")
		case "c":
			show[complex128](path, key, "<c16")
		default:
			show[float64](path, key, "<f8")
		}
	}
	if _, _, err := ReadNpz[int64](path, "x", "<i8"); err == nil {
		panic("doubles were read as integers")
	}
}
"""


class Language(NamedTuple):
    """The programs that must be installed, files to write, and commands: the last one reads."""

    needs: str
    files: dict[str, str]
    commands: list[list[str]]
    keys: tuple[str, ...]


LANGUAGES = {
    "cpp": Language(
        "c++",
        {"snippet.h": SNIPPETS["cpp"], "main.cpp": CPP},
        [["c++", "-I", str(READERS_FOLDER), "main.cpp", "-o", "main", "-lz"], ["./main"]],
        DOUBLES,
    ),
    "r": Language("Rscript", {"main.R": SNIPPETS["r"] + R}, [["Rscript", "main.R"]], REAL),
    "matlab": Language(
        "octave-cli",
        {"read_npy.m": SNIPPETS["matlab"], "main.m": OCTAVE},
        [["octave-cli", "-q", "main.m"]],
        REAL,
    ),
    "js": Language(
        "node",
        {"snippet.mjs": SNIPPETS["js"], "main.mjs": JAVASCRIPT},
        [["node", "main.mjs"]],
        NUMBERS,
    ),
    "java": Language(
        "javac",
        {"Npz.java": SNIPPETS["java"], "Main.java": JAVA},
        [["javac", "Npz.java", "Main.java"], ["java", "Main"]],
        NUMBERS,
    ),
    "go": Language(
        "go",
        {"npz.go": SNIPPETS["go"], "main.go": GO, "go.mod": "module npz\n\ngo 1.18\n"},
        [["go", "build", "-o", "main"], ["./main"]],
        NUMBERS,
    ),
}


# -- tests ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=LANGUAGES)
def reader(request, tmp_path_factory):
    """Return a language, and a function of a file and keys that returns what its code read."""
    language = LANGUAGES[request.param]
    if shutil.which(language.needs) is None:
        pytest.skip(f"{language.needs} is not installed")
    folder = tmp_path_factory.mktemp(request.param)
    for name, text in language.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    if request.param == "js":
        # An import of a module does not look into NODE_PATH.
        packages = Path(os.environ.get("NODE_PATH") or folder / "none")
        if not all((packages / name).exists() for name in ("fflate", "npyjs")):
            pytest.skip("fflate and npyjs are not installed")
        (folder / "node_modules").symlink_to(packages)
    *builds, command = language.commands
    for build in builds:
        run(build, folder)

    def read(path, keys):
        return run([*command, str(path), *keys], folder)

    return language, read


def run(command, folder):
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, encoding="utf-8", timeout=300,
        check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if "zlib.h" in done.stderr:
        pytest.skip("zlib's header is not installed")
    assert done.returncode == 0, done.stderr
    return done.stdout


def stored(path):
    npzkit.save(path, ARRAYS, metadata={"step": 7})


def deflated(path):
    npzkit.save(path, ARRAYS, compression="deflated", metadata={"long": "m" * 200_000})


def appended(path):
    """Arrays are replaced, added and removed, and the file is made one run for C++."""
    npzkit.save(path, {"x": ARRAYS["x"], "i8": np.zeros(3), "old": np.ones(3)})
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        w.add("i8", ARRAYS["i8"], overwrite=True)
        del w["old"]
        for key, array in ARRAYS.items():
            if key not in ("x", "i8"):
                w.add(key, array, compression="deflated")


@pytest.mark.slow
@pytest.mark.parametrize("make", [stored, deflated, appended])
def test_the_code_of_each_language_reads_what_was_saved(reader, make, tmp_path):
    """Shapes and values are those that were saved, in C and in Fortran order."""
    language, read = reader
    path = tmp_path / "a.npz"
    make(path)
    if language.needs == "c++":
        npzkit.repack(path)
    lines = [line.split("\t") for line in read(path, language.keys).splitlines()]
    assert tuple(key for key, *_ in lines) == language.keys
    for key, shape, is_fortran, values in lines:
        array, lengths = ARRAYS[key], tuple(map(int, shape.split()))
        # R and MATLAB have no arrays without an axis, and MATLAB none with one.
        assert [n for n in lengths if n != 1] == [n for n in array.shape if n != 1], key
        found = flat(values, array.dtype).reshape(lengths, order="CF"[is_fortran == "true"])
        assert found.reshape(array.shape).tolist() == array.tolist(), key


def flat(text, dtype):
    """Return the values that a program printed; complex ones are pairs, or Go's (1+2i)."""
    words = text.replace("true", "1").replace("false", "0").split()
    if "(" in text:
        return np.array([complex(word.strip("()").replace("i", "j")) for word in words])
    values = np.array(words, np.float64)
    return values.view(np.complex128) if dtype.kind == "c" else values


@pytest.mark.slow
@pytest.mark.parametrize(
    "array", [np.array([1.0], ">f8"), np.array(["abc"]), np.array([1], "M8[s]")]
)
def test_other_arrays_are_errors(reader, array, tmp_path):
    """Big-endian numbers, texts and dates are not read as something else."""
    language, read = reader
    if language.needs == "node" and array.dtype.kind == "U":
        pytest.skip("npyjs reads texts")
    if language.needs == "c++" and array.dtype.kind == "M":
        pytest.skip("cnpy looks at the size of values only")
    npzkit.save(tmp_path / "a.npz", {"x": array})
    with pytest.raises(AssertionError):
        read(tmp_path / "a.npz", ["x"])


@pytest.mark.slow
def test_octave_reads_what_convert_writes(tmp_path, monkeypatch):
    """MATLAB's own load, as Octave has it, reads numbers, complex ones and booleans of a .mat."""
    pytest.importorskip("scipy", reason="scipy is not installed")
    if shutil.which("octave-cli") is None:
        pytest.skip("octave-cli is not installed")
    monkeypatch.chdir(tmp_path)
    npzkit.save("a.npz", {"x": ARRAYS["x"], "c": ARRAYS["c"], "b": ARRAYS["b"]})
    for compression in ("stored", "deflated"):
        npzkit.convert("a.npz", "a.mat", compression=compression, overwrite=True)
        script = (
            "a = load('a.mat'); assert(isequal(a.x, [0 1 2; 3 4 5] / 8)); "
            "assert(isequal(a.c, [1+2i, 3-4i])); assert(islogical(a.b) && isequal(a.b, [1; 0]))"
        )
        assert (
            "error: assert"
            not in subprocess.run(
                ["octave-cli", "-q", "--eval", script], capture_output=True, text=True, check=True
            ).stderr
        )


def test_each_snippet_is_tried_or_said_to_be_untried():
    """A block of code on the page runs here, or the page says that it was not tried."""
    assert {*SNIPPETS} - {*LANGUAGES, "python"} == {"julia"}
    assert "NPZ.jl](https://github.com/fhs/NPZ.jl) was not tried" in PAGE
