"""The recipe of a Conan 2 package. `conan create cmake/packaging/conan` builds the tree that the recipe is a part of."""

import os

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy


class Halftone(ConanFile):
    name = "halftone"
    version = "0.1.0"
    license = "MIT"
    description = "A mini deep-learning framework whose subject is mixed precision"
    topics = ("deep-learning", "mixed-precision")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "fPIC": [True, False], "with_onednn": [True, False], "with_tools": [True, False]}
    default_options = {"shared": False, "fPIC": True, "with_onednn": False, "with_tools": False}
    implements = ["auto_shared_fpic"]

    def export_sources(self):
        root = os.path.normpath(os.path.join(self.recipe_folder, "..", "..", ".."))
        for pattern in ("CMakeLists.txt", "LICENSE", "halftone.h", "docs/Doxyfile.in", "cmake/*", "amp/policies/*", "examples/*", "bench/*",
                        *(f"{folder}/*" for folder in ("core", "autograd", "distributed", "nn", "optim", "data", "amp", "policy",
                                                       "train", "onnx", "backends", "lab"))):
            copy(self, pattern, src=root, dst=self.export_sources_folder)

    def requirements(self):
        self.requires("zlib/[>=1.2.11 <2]")
        self.requires("nlohmann_json/[>=3.10 <4]")
        self.requires("stb/cci.20240531")
        if self.options.with_tools:
            self.requires("cli11/[>=2.1 <3]")
        if self.options.with_onednn:
            self.requires("onednn/[>=2.6 <4]")

    def validate(self):
        check_min_cppstd(self, 20)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        # Packages of the machine must not decide about the package: MPI and CUDA are off, also if they are installed.
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables.update({
            "HALFTONE_BUILD_TESTS": False, "HALFTONE_BUILD_EXAMPLES": bool(self.options.with_tools), "HALFTONE_INSTALL": True,
            "HALFTONE_ONEDNN": "ON" if self.options.with_onednn else "OFF", "HALFTONE_MPI": "OFF", "HALFTONE_CUDA": "OFF",
            "HALFTONE_UNITY": True})  # one build, as short as it can be
        toolchain.generate()
        CMakeDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", src=self.source_folder, dst=os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        # find_package(halftone) reads the files that CMake installed: they know OpenMP and what a static library needs.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs.append(os.path.join("lib", "cmake", "halftone"))
