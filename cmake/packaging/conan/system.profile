# For a machine without a Conan remote: libraries are those of the distribution (zlib1g-dev, nlohmann-json3-dev, libstb-dev, libcli11-dev).
# conan create cmake/packaging/conan --profile:all cmake/packaging/conan/system.profile
include(default)

[settings]
compiler.cppstd=20
build_type=Release

[platform_requires]
zlib/1.2.13
nlohmann_json/3.11.2
stb/cci.20240531
cli11/2.1.2
