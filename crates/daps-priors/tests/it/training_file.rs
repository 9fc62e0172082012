//! `examples/train.toml` has every key of a training, no other, and states its defaults as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use daps_core::Rate;
use daps_priors::network::{
    AdmConfig, Architecture, ConvNetConfig, ConvUnetConfig, DecoderType, DhariwalConfig, EmbeddingType,
    EncoderType, SongConfig,
};
use daps_priors::training::{
    CardConfig, ClassesConfig, Crops, DataConfig, EmaConfig, Fit, LossConfig, OptimizerConfig, TestConfig,
    TokensConfig, TrainConfig,
};
use toml::{Table, Value};

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/train.toml")
}

/// The example with every optional key taken in: a `#` that a key or a table follows at once is dropped.
fn whole() -> String {
    let text = std::fs::read_to_string(path()).unwrap();
    let line = |line: &str| match line.strip_prefix('#') {
        Some(rest) if !rest.starts_with(' ') => rest.to_owned(),
        _ => line.to_owned(),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Dotted names of all keys with their values.
fn leaves(table: &Table) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for (key, value) in table {
        match value {
            Value::Table(inner) => {
                found.extend(leaves(inner).into_iter().map(|(name, v)| (format!("{key}.{name}"), v)));
            }
            other => _ = found.insert(key.clone(), other.clone()),
        }
    }
    found
}

/// Every kind of network with every setting given: a new one does not compile until it stands here.
fn networks() -> [Architecture; 5] {
    let adm = AdmConfig {
        image_size: 8,
        channels: 3,
        model_channels: 8,
        channel_mult: vec![1],
        num_res_blocks: 1,
        attention_resolutions: vec![4],
        num_heads: 1,
        num_head_channels: Some(1),
        num_heads_upsample: Some(1),
        learn_sigma: false,
        use_scale_shift_norm: false,
        resblock_updown: false,
        conv_resample: true,
        use_new_attention_order: false,
        num_classes: Some(1),
        norm_groups: 1,
    };
    let song = SongConfig {
        image_size: 8,
        channels: 3,
        label_dim: 0,
        augment_dim: 0,
        model_channels: 8,
        channel_mult: vec![1],
        channel_mult_emb: 1,
        num_blocks: 1,
        attn_resolutions: vec![4],
        embedding_type: EmbeddingType::Positional,
        channel_mult_noise: 1,
        encoder_type: EncoderType::Standard,
        decoder_type: DecoderType::Standard,
        resample_filter: vec![1.0],
    };
    let dhariwal = DhariwalConfig {
        image_size: 8,
        channels: 3,
        label_dim: 0,
        augment_dim: 0,
        model_channels: 8,
        channel_mult: vec![1],
        channel_mult_emb: 1,
        num_blocks: 1,
        attn_resolutions: vec![4],
    };
    let conv_unet = ConvUnetConfig { image_size: 8, channels: 1, widths: vec![8], blocks: vec![1] };
    let conv_net = ConvNetConfig {
        image_size: 8,
        channels: 1,
        num_classes: 2,
        model_channels: 8,
        channel_mult: vec![1],
        num_convs: 1,
        norm_groups: 1,
    };
    [
        Architecture::Adm(adm),
        Architecture::Song(song),
        Architecture::Dhariwal(dhariwal),
        Architecture::ConvUnet(conv_unet),
        Architecture::ConvNet(conv_net),
    ]
}

/// A training with every setting given.
fn everything(network: Architecture) -> TrainConfig {
    TrainConfig {
        name: "all".to_owned(),
        seed: 1,
        images: 1,
        cooldown: 1.0,
        batch: 1,
        checkpoint_minutes: 1.0,
        report_minutes: 1.0,
        patch: 1,
        start: Some("a".into()),
        tokens: Some(TokensConfig { symbols: 2, rate: Rate::Uniform }),
        classes: Some(ClassesConfig {
            labels: "a".into(),
            shift: 1,
            test: Some(TestConfig { images: "a".into(), labels: "a".into() }),
        }),
        data: DataConfig {
            source: "a".into(),
            held_out: 1,
            flip: true,
            fit: Fit::Crop,
            crops: Some(Crops::default()),
            left_out: 1,
        },
        network,
        loss: LossConfig { p_mean: 1.0, p_std: 1.0, sigma_data: Some(1.0) },
        optimizer: OptimizerConfig {
            learning_rate: 1.0,
            warmup: 1.0,
            decay_after: 1.0,
            beta1: 0.5,
            beta2: 0.5,
            epsilon: 1.0,
            weight_decay: 1.0,
            clip: 1.0,
        },
        ema: EmaConfig { half_life: 1.0, ramp: 1.0 },
        card: CardConfig { data: "a".to_owned(), licence: "a".to_owned(), recipe: "a".to_owned() },
    }
}

fn keys(config: &TrainConfig) -> BTreeSet<String> {
    leaves(&Table::try_from(config).unwrap()).into_keys().collect()
}

#[test]
fn the_example_is_a_training_and_has_every_key() {
    let config = TrainConfig::read(&path()).unwrap();
    let data = config.read_data(path().parent().unwrap()).unwrap();
    assert!(data.held_out.len() >= 2 && data.train.len() > data.held_out.len());
    let known: BTreeSet<String> = networks().into_iter().flat_map(|n| keys(&everything(n))).collect();
    let shown: BTreeSet<String> = leaves(&whole().parse::<Table>().unwrap()).into_keys().collect();
    let missing: Vec<_> = known.difference(&shown).collect();
    let invented: Vec<_> = shown.difference(&known).collect();
    assert!(missing.is_empty() && invented.is_empty(), "missing: {missing:?}, invented: {invented:?}");
}

/// The settings of the example that a kind of network takes, each with the example's value.
#[test]
fn every_value_of_the_example_can_be_taken_in() {
    let shown: Table = whole().parse().unwrap();
    for (network, kind) in networks().into_iter().zip(["adm", "song", "dhariwal", "conv-unet", "conv-net"]) {
        let known = keys(&everything(network));
        let mut table = shown.clone();
        let own = table["network"].as_table_mut().unwrap();
        own.retain(|key, _| known.contains(&format!("network.{key}")));
        own.insert("kind".to_owned(), kind.into());
        let text = toml::to_string(&table).unwrap();
        toml::from_str::<TrainConfig>(&text).unwrap_or_else(|e| panic!("{kind}: {e}"));
    }
}

/// Dotted names with the default that their comment states.
fn stated() -> BTreeMap<String, Option<Value>> {
    let (mut table, mut found) = (String::new(), BTreeMap::new());
    for line in whole().lines().filter(|l| !l.starts_with('#') && !l.is_empty()) {
        if let Some(name) = line.strip_prefix('[') {
            table = format!("{}.", name.split(']').next().unwrap());
            continue;
        }
        let (key, rest) = line.split_once(" = ").unwrap_or_else(|| panic!("{line}"));
        let default = rest.split_once("[default: ").map(|(_, text)| {
            let text = text.trim_end().strip_suffix(']').unwrap_or_else(|| panic!("{line}"));
            format!("x = {text}").parse::<Table>().unwrap_or_else(|e| panic!("{line}: {e}"))["x"].clone()
        });
        found.insert(format!("{table}{}", key.trim()), default);
    }
    found
}

/// Sets a key of a table by its dotted name.
fn set(table: &mut Table, name: &str, value: Value) {
    match name.split_once('.') {
        None => _ = table.insert(name.to_owned(), value),
        Some((first, rest)) => {
            let inner = table.entry(first).or_insert_with(|| Table::new().into());
            set(inner.as_table_mut().unwrap(), rest, value);
        }
    }
}

#[test]
fn defaults_are_stated_as_they_are() {
    const TOP: &str = "name = \"a\"\nimages = 1\n[data]\nsource = \"a\"\n[tokens]\nsymbols = 2\n[classes]\nlabels = \"a\"\n";
    let wide = "image_size = 8\nmodel_channels = 8\nchannel_mult = [1]";
    let blocks = "num_blocks = 1\nattn_resolutions = [4]";
    let (stated, mut compared) = (stated(), BTreeSet::new());
    for network in [
        format!("kind = \"adm\"\n{wide}\nnum_res_blocks = 1\nattention_resolutions = [4]"),
        format!("kind = \"song\"\n{wide}\n{blocks}"),
        format!("kind = \"dhariwal\"\n{wide}\n{blocks}"),
    ] {
        let text = format!("{TOP}[network]\n{network}\n");
        let least: TrainConfig = toml::from_str(&text).unwrap();
        let given = leaves(&text.parse().unwrap());
        let filled = leaves(&Table::try_from(&least).unwrap());
        for name in filled.keys().filter(|name| !given.contains_key(*name)) {
            assert!(stated[name].is_some(), "{name} has a default that the example does not state");
        }
        for (name, default) in stated.iter().filter_map(|(name, d)| Some((name, d.clone()?))) {
            if name.starts_with("network.") && !filled.contains_key(name) {
                continue;
            }
            let mut table: Table = text.parse().unwrap();
            set(&mut table, name, default.clone());
            let same: TrainConfig = table.try_into().unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(same, least, "{name} is not {default} by default");
            compared.insert(name.clone());
        }
    }
    let all: BTreeSet<String> =
        stated.into_iter().filter(|(_, d)| d.is_some()).map(|(name, _)| name).collect();
    assert_eq!(compared, all);
}
