// The headers of data/ for users: datasets, the loader, images and their transforms, text.
#pragma once

#include <halftone/data/csv.h>
#include <halftone/data/data_loader.h>
#include <halftone/data/images.h>
#include <halftone/data/images/byte_images.h>
#include <halftone/data/images/image.h>
#include <halftone/data/images/image_folder.h>
#include <halftone/data/images/mixup.h>
#include <halftone/data/sets.h>
#include <halftone/data/sets/cifar10.h>
#include <halftone/data/sets/fashion_mnist.h>
#include <halftone/data/tensor_dataset.h>
#include <halftone/data/text.h>
#include <halftone/data/text/text.h>
#include <halftone/data/text/tokenizer.h>
#include <halftone/data/transforms.h>
