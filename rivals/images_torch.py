"""The same pictures through PyTorch's DataLoader: decode with PIL, bilinear 224 x 224, divided by 255, batches of 64, two workers.

    pip install torch pillow
    python rivals/images_torch.py FOLDER

FOLDER has one folder of JPEGs per class. Beside it: plimsoll data bench CONFIG --epochs 3. PIL decodes and resizes as torchvision's
default does, but shrinks with antialiasing, which tf.image.resize and Plimsoll's bilinear do not; a second figure is without it, by PyTorch.
"""

import glob
import resource
import sys
import time

import numpy
import torch
from PIL import Image

SIZE = 224


class Pictures(torch.utils.data.Dataset):
    def __init__(self, folder, antialias):
        self.files = sorted(glob.glob(folder + "/*/*.jpg"))
        classes = sorted({file.split("/")[-2] for file in self.files})
        self.labels = [classes.index(file.split("/")[-2]) for file in self.files]
        self.antialias = antialias

    def __len__(self):
        return len(self.files)

    def __getitem__(self, row):
        image = Image.open(self.files[row]).convert("RGB")
        if self.antialias:
            pixels = torch.from_numpy(numpy.asarray(image.resize((SIZE, SIZE), Image.BILINEAR)).copy())
            return pixels.permute(2, 0, 1).float() / 255.0, self.labels[row]
        pixels = torch.from_numpy(numpy.asarray(image).copy()).permute(2, 0, 1).float()[None]
        return torch.nn.functional.interpolate(pixels, (SIZE, SIZE), mode="bilinear")[0] / 255.0, self.labels[row]


if __name__ == "__main__":
    torch.manual_seed(7)
    before = time.process_time()
    for antialias in [True, False]:
        pictures = Pictures(sys.argv[1], antialias)
        loader = torch.utils.data.DataLoader(pictures, batch_size=64, shuffle=True, num_workers=2, persistent_workers=True)
        for epoch in range(2):
            start = time.perf_counter()
            for batch in loader:
                pass
            rate = len(pictures) / (time.perf_counter() - start)
            print(f"{'PIL' if antialias else 'torch'} epoch {epoch + 1}: {rate:.0f} images/s", flush=True)
        # Workers are ended here, so that the next figure has the machine to itself, and the system tells what they took.
        del loader
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = used.ru_utime + used.ru_stime + time.process_time() - before
        before += cpu
        print(f"{'PIL' if antialias else 'torch'}: {1000 * cpu / (2 * len(pictures)):.3f} ms of a core each", flush=True)
    usage = resource.getrusage
    own, workers = usage(resource.RUSAGE_SELF).ru_maxrss, usage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(f"peak {own / 1024:.0f} MiB, and {workers / 1024:.0f} MiB in the larger worker")
