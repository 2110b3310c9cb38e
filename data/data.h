// Everything in data/ that users need: datasets, the loader, images and their transforms, text.
#pragma once

#include <halftone/data/byte_images.h>
#include <halftone/data/byte_pair_tokenizer.h>
#include <halftone/data/cifar10.h>
#include <halftone/data/csv.h>
#include <halftone/data/data_loader.h>
#include <halftone/data/fashion_mnist.h>
#include <halftone/data/image.h>
#include <halftone/data/image_files.h>
#include <halftone/data/image_folder.h>
#include <halftone/data/mixup.h>
#include <halftone/data/oxford_pets.h>
#include <halftone/data/tensor_dataset.h>
#include <halftone/data/text.h>
#include <halftone/data/tokenizer.h>
#include <halftone/data/transforms.h>
