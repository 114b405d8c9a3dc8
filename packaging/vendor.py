#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Makes vendor/ of a source archive small and its licences readable: SOURCE_FOLDER.

    vendor/CRATE-VERSION/            of a crate that only other systems or only tests compile the
                                     manifest is left, which cargo wants for its lock file
    THIRD-PARTY-LICENCES.txt         the licence of every other crate, and its text
    packaging/debian/copyright       one paragraph for each of them (they are appended)

Object files that crates bring for other systems are removed, and backups. `cargo vendor --versioned-dirs` has filled vendor/ before. Needs no network.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys

# What packages are made of; the crates that only tests use are not in the archive.
SHIPPED = ["dlock-cli", "dlock-server", "dlock-ffi-client", "dlock-ffi-server", "dlock-ffi-common"]
PLATFORMS = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"]
# Objects for other systems, which are without their source; what dh_clean would take for leftovers.
LEFT_OUT = re.compile(r"\.(o|obj|a|lib|dll|exe|so|dylib|orig)$")
LICENCE_FILE = re.compile(r"(?i)^(licen[cs]e|copying|copyright|notice|unlicense)")


def metadata(source, platform):
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--offline",
               "--all-features", "--filter-platform", platform]
    return json.loads(subprocess.check_output(command, cwd=source))


def used_crates(source):
    """The crates from outside that packages are built of, by folder in vendor/."""
    used = {}
    for platform in PLATFORMS:
        graph = metadata(source, platform)
        nodes = {node["id"]: node for node in graph["resolve"]["nodes"]}
        packages = {package["id"]: package for package in graph["packages"]}
        todo = [key for key, package in packages.items() if package["name"] in SHIPPED]
        reached = set()
        while todo:
            key = todo.pop()
            if key in reached:
                continue
            reached.add(key)
            todo += [dependency["pkg"] for dependency in nodes[key]["deps"]
                     if any(kind["kind"] != "dev" for kind in dependency["dep_kinds"])]
        for package in (packages[key] for key in reached):
            if package["source"]:
                used[os.path.basename(os.path.dirname(package["manifest_path"]))] = package
    return used


def strip(folder):
    """Leaves of a crate its manifest and an empty library."""
    with open(os.path.join(folder, ".cargo-checksum.json"), encoding="utf-8") as file:
        package = json.load(file)["package"]
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif name != "Cargo.toml":
            os.remove(path)
    os.mkdir(os.path.join(folder, "src"))
    open(os.path.join(folder, "src", "lib.rs"), "w", encoding="utf-8").close()
    with open(os.path.join(folder, ".cargo-checksum.json"), "w", encoding="utf-8") as file:
        json.dump({"files": {}, "package": package}, file)


def leave_out(folder):
    """Removes files that a package must not have, or its tools would remove."""
    sums = os.path.join(folder, ".cargo-checksum.json")
    with open(sums, encoding="utf-8") as file:
        checksum = json.load(file)
    unwanted = [path for path in checksum["files"] if LEFT_OUT.search(path)]
    for path in unwanted:
        os.remove(os.path.join(folder, path))
        del checksum["files"][path]
    if unwanted:
        with open(sums, "w", encoding="utf-8") as file:
            json.dump(checksum, file)


def licence_files(folder):
    found = []
    for below, folders, names in os.walk(folder):
        depth = os.path.relpath(below, folder).count(os.sep)
        folders[:] = sorted(f for f in folders if depth < 2 and f not in ("src", "tests"))
        found += [os.path.join(below, name) for name in sorted(names) if LICENCE_FILE.match(name)]
    return [path for path in found if os.path.isfile(path)]


def text_of(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().strip("\n")


def collect(source, crates):
    """Each text once: most crates have the same text of Apache-2.0."""
    texts, lines = {}, [
        "Crates from outside that are in this source archive, and in part in what is built from",
        "it. For each: its licence, and the numbers of the texts below.", ""]
    for name in sorted(crates):
        numbers = []
        for path in licence_files(os.path.join(source, "vendor", name)):
            text = text_of(path)
            key = hashlib.sha256(" ".join(text.split()).encode()).digest()
            numbers.append(texts.setdefault(key, (len(texts) + 1, text))[0])
        licence = licence_of(crates[name])
        shown = ", ".join(str(number) for number in sorted(set(numbers)))
        lines.append(f"{name}: {licence} [{shown or 'no text of its own: see the licence named'}]")
    for number, text in texts.values():
        lines += ["", f"==== text {number} " + "=" * 60, "", text]
    with open(os.path.join(source, "THIRD-PARTY-LICENCES.txt"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def licence_of(package):
    licence = package["license"]
    if not licence:
        sys.exit(f"vendor: {package['name']} names no licence")
    return licence.replace("/", " OR ")


def append_copyright(source, crates):
    path = os.path.join(source, "packaging", "debian", "copyright")
    if not os.path.exists(path):
        return
    with open(path, "a", encoding="utf-8") as file:
        for name in sorted(crates):
            authors = [a for a in crates[name]["authors"] if a] or ["its authors"]
            holders = "\n           ".join(authors)
            licence = licence_of(crates[name]).replace(" OR ", " or ").replace(" AND ", " and ")
            licence = re.sub(r" WITH (\S+)", r" with \1 exception", licence)
            licence = licence.replace("(", "").replace(")", "")
            file.write(f"\nFiles: vendor/{name}/*\nCopyright: {holders}\nLicense: {licence}\n"
                       " The text is in THIRD-PARTY-LICENCES.txt.\n")


def main():
    source = os.path.abspath(sys.argv[1])
    crates = used_crates(source)
    vendor = os.path.join(source, "vendor")
    stripped = 0
    for name in sorted(os.listdir(vendor)):
        if name in crates:
            leave_out(os.path.join(vendor, name))
        else:
            strip(os.path.join(vendor, name))
            stripped += 1
    collect(source, crates)
    append_copyright(source, crates)
    print(f"vendored: {len(crates)} crates; of {stripped} others, for tests and other systems, the manifests")


if __name__ == "__main__":
    main()
