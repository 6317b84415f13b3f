#!/usr/bin/env bash
# Builds libjpeg-turbo as a static library that a shared one can hold, for the wheels: libjpeg_turbo.sh PREFIX [TARBALL]
# Without a tarball of your own it downloads the release below and checks its sum. Needs cmake, a C compiler, and nasm on
# x86, without which it would decode at a fraction of the speed.
set -euo pipefail

version=3.1.4.1
sha256=ecae8008e2cc9ade2f2c1bb9d5e6d4fb73e7c433866a056bd82980741571a022
url="https://github.com/libjpeg-turbo/libjpeg-turbo/releases/download/$version/libjpeg-turbo-$version.tar.gz"

prefix="$(realpath -m "$1")"
project="$(realpath "$(dirname "$0")/../..")"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

if [ $# -gt 1 ]; then
  tarball="$2"
else
  tarball="$work/libjpeg-turbo.tar.gz"
  curl --fail --silent --show-error --location --retry 5 --output "$tarball" "$url"
  echo "$sha256  $tarball" | sha256sum --check --quiet
fi
mkdir "$work/source"
tar -xzf "$tarball" -C "$work/source" --strip-components=1

# REQUIRE_SIMD: an error instead of a slow library. The libdir whole: 2.1 takes a relative one from the current folder.
cmake -S "$work/source" -B "$work/build" \
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
  -DENABLE_SHARED=OFF -DENABLE_STATIC=ON -DREQUIRE_SIMD=ON -DWITH_TURBOJPEG=OFF \
  -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR="$prefix/lib"
cmake --build "$work/build" --parallel
cmake --install "$work/build"

# A wheel that holds libjpeg-turbo has to hold its licenses; setuptools packs LICENSE* of this folder.
cat "$work/source/LICENSE.md" "$work/source/README.ijg" > "$project/LICENSE.libjpeg-turbo"

# And says so in a list that scanners of vulnerabilities read; setup.py packs it where PEP 770 wants it.
linked="$(sed -n 's/^set(VERSION \([0-9.]*\))$/\1/p' "$work/source/CMakeLists.txt")"
own="$(sed -n 's/^version = "\(.*\)"$/\1/p' "$project/pyproject.toml")"
cat > "$project/libjpeg-turbo.cdx.json" << END
{
  "\$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
  "bomFormat": "CycloneDX",
  "specVersion": "1.6",
  "version": 1,
  "metadata": {
    "component": {
      "type": "library",
      "bom-ref": "pkg:pypi/gpupipe@$own",
      "name": "gpupipe",
      "version": "$own",
      "purl": "pkg:pypi/gpupipe@$own"
    }
  },
  "components": [
    {
      "type": "library",
      "bom-ref": "pkg:github/libjpeg-turbo/libjpeg-turbo@$linked",
      "name": "libjpeg-turbo",
      "version": "$linked",
      "description": "libjpeg's API and its SIMD extensions, linked statically into gpupipe/kernels/_cpu.so",
      "licenses": [{"expression": "IJG AND Zlib"}],
      "cpe": "cpe:2.3:a:libjpeg-turbo:libjpeg-turbo:$linked:*:*:*:*:*:*:*",
      "purl": "pkg:github/libjpeg-turbo/libjpeg-turbo@$linked",
      "externalReferences": [
        {
          "type": "source-distribution",
          "url": "https://github.com/libjpeg-turbo/libjpeg-turbo/releases/tag/$linked",
          "comment": "built from an archive of this sum",
          "hashes": [{"alg": "SHA-256", "content": "$(sha256sum "$tarball" | cut -d ' ' -f 1)"}]
        }
      ]
    }
  ],
  "dependencies": [
    {
      "ref": "pkg:pypi/gpupipe@$own",
      "dependsOn": ["pkg:github/libjpeg-turbo/libjpeg-turbo@$linked"]
    },
    {"ref": "pkg:github/libjpeg-turbo/libjpeg-turbo@$linked"}
  ]
}
END
