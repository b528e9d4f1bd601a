//! What torchvision, timm and transformers call the layers of the zoo's networks.
//!
//! A scheme maps the path of a layer here to the name of its module there. A file is read with the scheme that finds
//! most layers in it.

/// A library's names for the layers of a network.
pub(super) struct Scheme {
    /// The library and the networks, for reports.
    pub name: &'static str,
    /// The module of a layer; none if the network has no such layer.
    pub module: fn(&str) -> Option<String>,
    /// Whether kernels of dense layers are stored as here, `[in, out]`.
    pub plain_kernels: bool,
}

const fn scheme(name: &'static str, module: fn(&str) -> Option<String>) -> Scheme {
    Scheme { name, module, plain_kernels: false }
}

/// All schemes.
pub(super) const SCHEMES: &[Scheme] = &[
    scheme("ResNet of torchvision and timm", resnet),
    scheme("ResNet of transformers", resnet_of_transformers),
    scheme("VGG16 of torchvision", |layer| vgg(layer, [2, 2, 3, 3, 3], ["classifier.0", "classifier.3", "classifier.6"])),
    scheme("VGG16 of timm", |layer| vgg(layer, [2, 2, 3, 3, 3], ["pre_logits.fc1", "pre_logits.fc2", "head.fc"])),
    scheme("VGG19 of torchvision", |layer| vgg(layer, [2, 2, 4, 4, 4], ["classifier.0", "classifier.3", "classifier.6"])),
    scheme("VGG19 of timm", |layer| vgg(layer, [2, 2, 4, 4, 4], ["pre_logits.fc1", "pre_logits.fc2", "head.fc"])),
    scheme("DenseNet of torchvision and timm", densenet),
    scheme("GoogLeNet of torchvision", googlenet),
    scheme("Inception v3 of torchvision and timm", inception_v3),
    scheme("MobileNetV2 of torchvision", mobilenet_v2),
    scheme("MobileNetV2 of timm", |layer| timm_blocks(layer, &[1, 2, 3, 4, 3, 3, 1])),
    scheme("EfficientNet-B0 of torchvision", efficientnet_b0),
    scheme("EfficientNet-B0 of timm", |layer| timm_blocks(layer, &[1, 2, 2, 3, 3, 4, 1])),
    scheme("ViT of timm", |layer| vit(layer, &TIMM_VIT)),
    scheme("ViT of torchvision", |layer| vit(layer, &TORCHVISION_VIT)),
    scheme("ViT of transformers", |layer| vit(layer, &TRANSFORMERS_VIT)),
    scheme("ViT of transformers before version 5", |layer| vit(layer, &OLD_TRANSFORMERS_VIT)),
    Scheme { name: "GPT-2 of transformers", module: |layer| gpt2(layer, "transformer."), plain_kernels: true },
    Scheme { name: "GPT-2 of transformers, without head", module: |layer| gpt2(layer, ""), plain_kernels: true },
    scheme("BERT of transformers", |layer| bert(layer, "bert.")),
    scheme("BERT of transformers, without head", |layer| bert(layer, "")),
];

/// The number in a part such as `block3`, counted from 0.
fn number(part: &str, before: &str) -> Option<usize> {
    part.strip_prefix(before)?.parse::<usize>().ok()?.checked_sub(1)
}

/// The position of a block among stages of these sizes: stage and place in it.
fn staged(block: usize, stages: &[usize]) -> Option<(usize, usize)> {
    let mut left = block;
    for (stage, size) in stages.iter().enumerate() {
        if left < *size {
            return Some((stage, left));
        }
        left -= size;
    }
    None
}

fn parts(layer: &str) -> Vec<&str> {
    layer.split('/').collect()
}

fn resnet(layer: &str) -> Option<String> {
    Some(match parts(layer)[..] {
        ["stem", "conv"] => "conv1".to_string(),
        ["stem", "norm"] => "bn1".to_string(),
        ["scores"] => "fc".to_string(),
        [stage, block, unit, kind] => {
            let block = format!("layer{}.{}", number(stage, "stage")? + 1, number(block, "block")?);
            let (conv, norm) = match unit {
                "first" | "reduce" => ("conv1", "bn1"),
                "second" | "middle" => ("conv2", "bn2"),
                "expand" => ("conv3", "bn3"),
                "project" => ("downsample.0", "downsample.1"),
                _ => return None,
            };
            format!("{block}.{}", if kind == "conv" { conv } else { norm })
        }
        _ => return None,
    })
}

fn resnet_of_transformers(layer: &str) -> Option<String> {
    let kind = |kind: &str| if kind == "conv" { "convolution" } else { "normalization" };
    Some(match parts(layer)[..] {
        ["stem", own] => format!("resnet.embedder.embedder.{}", kind(own)),
        ["scores"] => "classifier.1".to_string(),
        [stage, block, unit, own] => {
            let block = format!("resnet.encoder.stages.{}.layers.{}", number(stage, "stage")?, number(block, "block")?);
            let unit = match unit {
                "first" | "reduce" => "layer.0",
                "second" | "middle" => "layer.1",
                "expand" => "layer.2",
                "project" => "shortcut",
                _ => return None,
            };
            format!("{block}.{unit}.{}", kind(own))
        }
        _ => return None,
    })
}

fn vgg(layer: &str, stages: [usize; 5], dense: [&str; 3]) -> Option<String> {
    Some(match parts(layer)[..] {
        ["fc1"] => dense[0].to_string(),
        ["fc2"] => dense[1].to_string(),
        ["scores"] => dense[2].to_string(),
        [block, conv] => {
            let (block, conv) = (number(block, "block")?, number(conv, "conv")?);
            if conv >= *stages.get(block)? {
                return None;
            }
            // Every convolution has an activation behind it, every stage a pooling.
            let before: usize = stages[..block].iter().map(|convs| 2 * convs + 1).sum();
            format!("features.{}", before + 2 * conv)
        }
        _ => return None,
    })
}

fn densenet(layer: &str) -> Option<String> {
    Some(match parts(layer)[..] {
        ["stem", "conv"] => "features.conv0".to_string(),
        ["stem", "norm"] => "features.norm0".to_string(),
        ["norm"] => "features.norm5".to_string(),
        ["scores"] => "classifier".to_string(),
        [transition, "halve", kind] => format!("features.transition{}.{kind}", number(transition, "transition")? + 1),
        [block, layer, unit, kind] => {
            let unit = if unit == "reduce" { 1 } else { 2 };
            format!("features.denseblock{}.denselayer{}.{kind}{unit}", number(block, "block")? + 1, number(layer, "layer")? + 1)
        }
        _ => return None,
    })
}

/// A convolution or its normalization, as the Inception networks of torchvision name them.
fn basic(module: &str, kind: &str) -> String {
    format!("{module}.{}", if kind == "conv" { "conv" } else { "bn" })
}

fn googlenet(layer: &str) -> Option<String> {
    Some(match parts(layer)[..] {
        ["scores"] => "fc".to_string(),
        [conv @ ("conv1" | "conv2" | "conv3"), kind] => basic(conv, kind),
        [module, "one", kind] => basic(&format!("{module}.branch1"), kind),
        [module, branch, unit, kind] => {
            let branch = match (branch, unit) {
                ("three", "reduce") => "branch2.0",
                ("three", _) => "branch2.1",
                ("five", "reduce") => "branch3.0",
                ("five", _) => "branch3.1",
                ("pool", _) => "branch4.1",
                _ => return None,
            };
            basic(&format!("{module}.{branch}"), kind)
        }
        _ => return None,
    })
}

fn inception_v3(layer: &str) -> Option<String> {
    let parts = parts(layer);
    let (&kind, path) = parts.split_last()?;
    if layer == "scores" {
        return Some("fc".to_string());
    }
    let module = match path {
        ["conv1"] => "Conv2d_1a_3x3".to_string(),
        ["conv2"] => "Conv2d_2a_3x3".to_string(),
        ["conv3"] => "Conv2d_2b_3x3".to_string(),
        ["conv4"] => "Conv2d_3b_1x1".to_string(),
        ["conv5"] => "Conv2d_4a_3x3".to_string(),
        [mixed, rest @ ..] => {
            let block = mixed.strip_prefix("mixed")?;
            let stage = block.chars().next()?;
            let branch = match (stage, rest) {
                (_, ["one", "conv1"]) => "branch1x1".to_string(),
                (_, ["pool", "project"]) => "branch_pool".to_string(),
                ('5', ["five", conv]) => format!("branch5x5_{}", number(conv, "conv")? + 1),
                ('5', ["three", conv]) => format!("branch3x3dbl_{}", number(conv, "conv")? + 1),
                ('6', ["three"]) => "branch3x3".to_string(),
                ('6', ["double", "last"]) => "branch3x3dbl_3".to_string(),
                ('6', ["double", conv]) if block == "6a" => format!("branch3x3dbl_{}", number(conv, "conv")? + 1),
                ('6', ["double", conv]) => format!("branch7x7dbl_{}", number(conv, "conv")? + 1),
                ('6', ["seven", conv]) => format!("branch7x7_{}", number(conv, "conv")? + 1),
                ('7', ["three", "last"]) => "branch3x3_2".to_string(),
                ('7', ["seven", "last"]) => "branch7x7x3_4".to_string(),
                ('7', ["seven", conv]) => format!("branch7x7x3_{}", number(conv, "conv")? + 1),
                ('7', ["three", "conv1"]) => "branch3x3_1".to_string(),
                ('7', ["three", "across", _]) => "branch3x3_2a".to_string(),
                ('7', ["three", "down", _]) => "branch3x3_2b".to_string(),
                ('7', ["double", "across", _]) => "branch3x3dbl_3a".to_string(),
                ('7', ["double", "down", _]) => "branch3x3dbl_3b".to_string(),
                ('7', ["double", conv]) => format!("branch3x3dbl_{}", number(conv, "conv")? + 1),
                _ => return None,
            };
            format!("Mixed_{block}.{branch}")
        }
        [] => return None,
    };
    Some(basic(&module, kind))
}

fn mobilenet_v2(layer: &str) -> Option<String> {
    let pair = |kind: &str| if kind == "conv" { 0 } else { 1 };
    Some(match parts(layer)[..] {
        ["stem", kind] => format!("features.0.{}", pair(kind)),
        ["last", kind] => format!("features.18.{}", pair(kind)),
        ["scores"] => "classifier.1".to_string(),
        [block, unit, kind] => {
            let block = number(block, "block")? + 1;
            // The first block does not expand.
            let first = usize::from(block > 1);
            match unit {
                "expand" => format!("features.{block}.conv.0.{}", pair(kind)),
                "depthwise" => format!("features.{block}.conv.{first}.{}", pair(kind)),
                "project" => format!("features.{block}.conv.{}", first + 1 + pair(kind)),
                _ => return None,
            }
        }
        _ => return None,
    })
}

fn efficientnet_b0(layer: &str) -> Option<String> {
    let pair = |kind: &str| if kind == "conv" { 0 } else { 1 };
    Some(match parts(layer)[..] {
        ["stem", kind] => format!("features.0.{}", pair(kind)),
        ["last", kind] => format!("features.8.{}", pair(kind)),
        ["scores"] => "classifier.1".to_string(),
        [block, unit, kind] => {
            let (stage, place) = staged(number(block, "block")?, &[1, 2, 2, 3, 3, 4, 1])?;
            let first = usize::from(stage > 0);
            let module = format!("features.{}.{place}.block", stage + 1);
            match (unit, kind) {
                ("expand", _) => format!("{module}.0.{}", pair(kind)),
                ("depthwise", _) => format!("{module}.{first}.{}", pair(kind)),
                ("squeeze", "reduce") => format!("{module}.{}.fc1", first + 1),
                ("squeeze", "expand") => format!("{module}.{}.fc2", first + 1),
                ("project", _) => format!("{module}.{}.{}", first + 2, pair(kind)),
                _ => return None,
            }
        }
        _ => return None,
    })
}

/// Inverted residuals as timm names them, in stages of these sizes.
fn timm_blocks(layer: &str, stages: &[usize]) -> Option<String> {
    Some(match parts(layer)[..] {
        ["stem", "conv"] => "conv_stem".to_string(),
        ["stem", _] => "bn1".to_string(),
        ["last", "conv"] => "conv_head".to_string(),
        ["last", _] => "bn2".to_string(),
        ["scores"] => "classifier".to_string(),
        [block, unit, kind] => {
            let (stage, place) = staged(number(block, "block")?, stages)?;
            let expands = stage > 0;
            let own = match (unit, kind, expands) {
                ("expand", "conv", _) => "conv_pw",
                ("expand", _, _) => "bn1",
                ("depthwise", "conv", _) => "conv_dw",
                ("depthwise", _, true) => "bn2",
                ("depthwise", _, false) => "bn1",
                ("squeeze", "reduce", _) => "se.conv_reduce",
                ("squeeze", "expand", _) => "se.conv_expand",
                ("project", "conv", true) => "conv_pwl",
                ("project", "conv", false) => "conv_pw",
                ("project", _, true) => "bn3",
                ("project", _, false) => "bn2",
                _ => return None,
            };
            format!("blocks.{stage}.{place}.{own}")
        }
        _ => return None,
    })
}

/// A library's names for the parts of a vision transformer; `{}` is the number of the block. Attention is the module
/// whose weights are the projections of queries, keys and values.
struct VisionNames {
    patches: &'static str,
    token: &'static str,
    positions: &'static str,
    block: [&'static str; 6],
    norm: &'static str,
    scores: &'static str,
}

const TIMM_VIT: VisionNames = VisionNames {
    patches: "patch_embed.proj",
    token: "cls_token",
    positions: "pos_embed",
    block: ["blocks.{}.norm1", "blocks.{}.attn.qkv", "blocks.{}.attn.proj", "blocks.{}.norm2", "blocks.{}.mlp.fc1", "blocks.{}.mlp.fc2"],
    norm: "norm",
    scores: "head",
};

const TORCHVISION_VIT: VisionNames = VisionNames {
    patches: "conv_proj",
    token: "class_token",
    positions: "encoder.pos_embedding",
    block: [
        "encoder.layers.encoder_layer_{}.ln_1",
        "encoder.layers.encoder_layer_{}.self_attention.in_proj",
        "encoder.layers.encoder_layer_{}.self_attention.out_proj",
        "encoder.layers.encoder_layer_{}.ln_2",
        "encoder.layers.encoder_layer_{}.mlp.0",
        "encoder.layers.encoder_layer_{}.mlp.3",
    ],
    norm: "encoder.ln",
    scores: "heads.head",
};

const TRANSFORMERS_VIT: VisionNames = VisionNames {
    patches: "vit.embeddings.patch_embeddings.projection",
    token: "vit.embeddings.cls_token",
    positions: "vit.embeddings.position_embeddings",
    block: [
        "vit.layers.{}.layernorm_before",
        "vit.layers.{}.attention",
        "vit.layers.{}.attention.o_proj",
        "vit.layers.{}.layernorm_after",
        "vit.layers.{}.mlp.fc1",
        "vit.layers.{}.mlp.fc2",
    ],
    norm: "vit.layernorm",
    scores: "classifier",
};

const OLD_TRANSFORMERS_VIT: VisionNames = VisionNames {
    block: [
        "vit.encoder.layer.{}.layernorm_before",
        "vit.encoder.layer.{}.attention.attention",
        "vit.encoder.layer.{}.attention.output.dense",
        "vit.encoder.layer.{}.layernorm_after",
        "vit.encoder.layer.{}.intermediate.dense",
        "vit.encoder.layer.{}.output.dense",
    ],
    ..TRANSFORMERS_VIT
};

fn vit(layer: &str, names: &VisionNames) -> Option<String> {
    Some(match parts(layer)[..] {
        ["patches"] => names.patches.to_string(),
        ["class_token"] => names.token.to_string(),
        ["positions"] => names.positions.to_string(),
        ["norm"] => names.norm.to_string(),
        ["scores"] => names.scores.to_string(),
        _ => {
            let (place, block) = in_block(layer)?;
            names.block[place].replace("{}", &block.to_string())
        }
    })
}

/// A part of a transformer block: first normalization, attention, its output, second normalization, and both layers of
/// the MLP; and the number of the block.
fn in_block(layer: &str) -> Option<(usize, usize)> {
    let (block, part) = layer.split_once('/')?;
    let place = ["norm1", "attention", "attention/output", "norm2", "mlp/expand", "mlp/project"].iter().position(|known| *known == part)?;
    Some((place, number(block, "block")?))
}

fn gpt2(layer: &str, prefix: &str) -> Option<String> {
    let own = match layer {
        "tokens" => "wte".to_string(),
        "positions" => "wpe".to_string(),
        "norm" => "ln_f".to_string(),
        _ => {
            let (place, block) = in_block(layer)?;
            format!("h.{block}.{}", ["ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"][place])
        }
    };
    Some(format!("{prefix}{own}"))
}

fn bert(layer: &str, prefix: &str) -> Option<String> {
    let own = match layer {
        "tokens" => "embeddings.word_embeddings".to_string(),
        "positions" => "embeddings.position_embeddings".to_string(),
        "sentences" => "embeddings.token_type_embeddings".to_string(),
        "norm" => "embeddings.LayerNorm".to_string(),
        "pooler" => "pooler.dense".to_string(),
        "scores" => return Some("classifier".to_string()),
        _ => {
            let (place, block) = in_block(layer)?;
            let parts = [
                "attention.output.LayerNorm",
                "attention.self",
                "attention.output.dense",
                "output.LayerNorm",
                "intermediate.dense",
                "output.dense",
            ];
            format!("encoder.layer.{block}.{}", parts[place])
        }
    };
    Some(format!("{prefix}{own}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_have_the_names_of_other_libraries() {
        let names = [
            (resnet("stage2/block1/project/conv"), "layer2.0.downsample.0"),
            (resnet("stage3/block4/middle/norm"), "layer3.3.bn2"),
            (vgg("block3/conv2", [2, 2, 3, 3, 3], ["a", "b", "c"]), "features.12"),
            (densenet("block4/layer16/grow/conv"), "features.denseblock4.denselayer16.conv2"),
            (inception_v3("mixed7b/three/across/conv1/conv"), "Mixed_7b.branch3x3_2a.conv"),
            (mobilenet_v2("block1/project/norm"), "features.1.conv.2"),
            (mobilenet_v2("block2/project/conv"), "features.2.conv.2"),
            (efficientnet_b0("block2/squeeze/expand"), "features.2.0.block.2.fc2"),
            (timm_blocks("block1/project/norm", &[1, 2]), "blocks.0.0.bn2"),
            (gpt2("block12/attention", "transformer."), "transformer.h.11.attn.c_attn"),
            (bert("block1/norm2", "bert."), "bert.encoder.layer.0.output.LayerNorm"),
        ];
        for (found, wanted) in names {
            assert_eq!(found.as_deref(), Some(wanted));
        }
        assert_eq!(vgg("block1/conv3", [2, 2, 3, 3, 3], ["a", "b", "c"]), None);
    }
}
