//! Any text: a network configuration is refused, or it lists its parameters and survives being written.
#![no_main]

use daps_priors::NetworkConfig;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(config) = NetworkConfig::parse(text) {
        let _ = config.parameters();
        let written = config.to_toml().expect("a configuration can be written");
        assert_eq!(NetworkConfig::parse(&written).expect("and read again"), config);
    }
});
