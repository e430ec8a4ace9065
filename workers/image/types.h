/* transformers' image processors, with the defaults of their classes. A preprocessor_config.json may leave out whatever is the default. */
#ifndef EBB_IMAGE_TYPES_H
#define EBB_IMAGE_TYPES_H

#define IMAGE_MEAN_HALF {0.5, 0.5, 0.5}
#define IMAGE_MEAN_IMAGENET {0.485, 0.456, 0.406}
#define IMAGE_STD_IMAGENET {0.229, 0.224, 0.225}
#define IMAGE_MEAN_CLIP {0.48145466, 0.4578275, 0.40821073}
#define IMAGE_STD_CLIP {0.26862954, 0.26130258, 0.27577711}

enum image_rule {        /* what a type does besides the common steps */
    RULE_PLAIN,
    RULE_CONVNEXT,       /* below 384 the shorter side becomes size / crop_pct and size x size is cropped; else both sides become size */
    RULE_LEVIT,          /* the shorter side becomes size * 256 / 224 */
    RULE_POOLFORMER,     /* sizes are divided by crop_pct, and the crop cuts them back */
    RULE_EFFICIENTNET,   /* rescale_offset: minus 1 after rescaling; include_top: divided by the deviation once more */
    RULE_MOBILEVIT,      /* BGR; does not normalise whatever do_normalize says */
    RULE_GENERIC,
};

struct image_type {
    const char *name;    /* without ImageProcessor and Fast */
    enum image_rule rule;
    int shortest, size;  /* size is the shorter side, else both */
    int square;          /* a size that is a bare number means both sides */
    int crop;            /* size of the crop that the type has ready; do_center_crop is on with `crops` */
    int crops;
    int resample;
    int convert_rgb;     /* transparency is laid over white */
    double mean[3], std[3];
};

/* clang-format off */
static const struct image_type image_types[] = {
    {"ViT",          RULE_PLAIN,        0, 224, 1, 0,   0, 2, 0, IMAGE_MEAN_HALF,     IMAGE_MEAN_HALF},
    {"CLIP",         RULE_PLAIN,        1, 224, 0, 224, 1, 3, 1, IMAGE_MEAN_CLIP,     IMAGE_STD_CLIP},
    {"ChineseCLIP",  RULE_PLAIN,        1, 224, 0, 224, 1, 3, 1, IMAGE_MEAN_CLIP,     IMAGE_STD_CLIP},
    {"ConvNext",     RULE_CONVNEXT,     1, 384, 0, 0,   0, 3, 0, IMAGE_MEAN_HALF,     IMAGE_MEAN_HALF},
    {"Beit",         RULE_PLAIN,        0, 224, 1, 224, 0, 3, 0, IMAGE_MEAN_HALF,     IMAGE_MEAN_HALF},
    {"DeiT",         RULE_PLAIN,        0, 256, 1, 224, 1, 3, 0, IMAGE_MEAN_HALF,     IMAGE_MEAN_HALF},
    {"EfficientNet", RULE_EFFICIENTNET, 0, 346, 1, 289, 0, 3, 0, IMAGE_MEAN_HALF,     IMAGE_MEAN_HALF},
    {"MobileNetV1",  RULE_PLAIN,        1, 256, 0, 224, 1, 2, 0, IMAGE_MEAN_HALF,     IMAGE_MEAN_HALF},
    {"MobileNetV2",  RULE_PLAIN,        1, 256, 0, 224, 1, 2, 0, IMAGE_MEAN_HALF,     IMAGE_MEAN_HALF},
    {"MobileViT",    RULE_MOBILEVIT,    1, 224, 0, 256, 1, 3, 0, IMAGE_MEAN_HALF,     IMAGE_MEAN_HALF},
    {"Siglip",       RULE_PLAIN,        0, 224, 0, 0,   0, 3, 1, IMAGE_MEAN_HALF,     IMAGE_MEAN_HALF},
    {"Bit",          RULE_PLAIN,        1, 224, 0, 224, 1, 3, 1, IMAGE_MEAN_CLIP,     IMAGE_STD_CLIP},
    {"Levit",        RULE_LEVIT,        1, 224, 0, 224, 1, 3, 0, IMAGE_MEAN_IMAGENET, IMAGE_STD_IMAGENET},
    {"Pvt",          RULE_PLAIN,        0, 224, 1, 0,   0, 3, 0, IMAGE_MEAN_IMAGENET, IMAGE_STD_IMAGENET},
    {"PoolFormer",   RULE_POOLFORMER,   1, 224, 0, 224, 1, 3, 0, IMAGE_MEAN_IMAGENET, IMAGE_STD_IMAGENET},
    {"Blip",         RULE_PLAIN,        0, 384, 1, 0,   0, 3, 1, IMAGE_MEAN_CLIP,     IMAGE_STD_CLIP},
    {"generic",      RULE_GENERIC,      0, 0,   1, 0,   0, 2, 0, IMAGE_MEAN_HALF,     IMAGE_MEAN_HALF},
};
/* clang-format on */

#endif
