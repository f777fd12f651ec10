"""ONNX: export a model, and predict without torch.

pip install "headhunt[all] @ git+https://github.com/headhunt-ml/headhunt"
"""

import subprocess
import sys

import headhunt
from headhunt.delivery.onnx.export import export

ENCODER = "sentence-transformers/all-MiniLM-L6-v2"  # any encoder of the Hugging Face Hub, or a folder

headhunt.fit(headhunt.datasets.load_demo(), encoder=ENCODER, out="model")
exported = export("model", "export")
print(f"the logits differ by at most {exported.difference:.1e}")

# The folder needs numpy, onnxruntime and tokenizers only; -c shows that torch is not loaded.
code = """
import sys
from predict import Model

print(Model("export").predict("My new card has not come yet")[0]["label"], "torch" in sys.modules)
"""
subprocess.run([sys.executable, "-c", "import sys; sys.path.insert(0, 'export')" + code], check=True)
