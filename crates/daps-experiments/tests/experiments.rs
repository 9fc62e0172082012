//! The experiments that are shipped: every file can be read, every pair of method and task fits or is refused with a reason.

use std::path::{Path, PathBuf};

use daps_experiments::experiment::{Experiment, ExperimentConfig, PriorEntry};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments")
}

fn shipped() -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder()).unwrap().map(|e| e.unwrap().path());
    let is_experiment = |p: &PathBuf| {
        let name = p.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(".toml") && !name.starts_with("paper")
    };
    let mut files: Vec<PathBuf> = files.filter(is_experiment).collect();
    files.sort();
    files
}

#[test]
fn every_file_says_what_it_takes_and_every_pair_is_known_to_fit_or_not() {
    let files = shipped();
    assert!(files.len() >= 13, "{files:?}");
    for file in files {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let mut config = ExperimentConfig::read(&file).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(config.name, name);
        assert!(config.hours.is_some_and(|h| h > 0.0) && !config.about.is_empty(), "{name}");
        let PriorEntry::Name(prior) = &config.prior else { panic!("{name}: one line names the prior") };
        if prior == "faces" {
            // A prior in closed form with the bundled one's shape, so that no weights are needed.
            config.prior = PriorEntry::Settings(toml::from_str("kind = 'gaussian'\nstd = 0.5").unwrap());
            config.shape = vec![3, 64, 64];
            config.data.source = "bundled".into();
        } else {
            assert_eq!(prior, "binary-digits");
            config.data.source = folder().join("../priors/digits/images");
        }
        (config.data.held_out, config.data.skip, config.data.images) = (None, 0, 1);
        config.data.labels = None;
        config.seeds.truncate(1);
        let experiment = Experiment::open(config, &folder()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let overruled = experiment.notes().iter().find(|n| n.contains("settings that differ from this file"));
        assert_eq!(overruled, None, "{name}");
        let fits = experiment.fits().unwrap_or_else(|e| panic!("{name}: {e}"));
        for (method, task, refusal) in &fits {
            assert!(refusal.iter().all(|r| r.contains(" needs ")), "{name}, {method} on {task}: {refusal:?}");
        }
        for method in &experiment.config().methods {
            let fitting =
                fits.iter().filter(|(m, _, refusal)| *m == method.label && refusal.is_none()).count();
            assert!(fitting > 0, "{name}: {} fits no task", method.label);
            // Whoever is beside the paper's figures is there under a name that the paper has.
            if let Some(paper) = &method.paper {
                let file = experiment.config().paper.clone();
                let file = file
                    .unwrap_or_else(|| panic!("{name}: names {paper}, and no file of the paper's figures"));
                let text = std::fs::read_to_string(folder().join(file)).unwrap();
                assert!(text.contains(&format!("method = \"{paper}\"")), "{name}: {paper}");
            }
        }
    }
}

/// The example beside the README, as it is.
#[test]
fn the_example_of_a_table_of_ones_own_fits() {
    let folder = folder().join("../examples");
    let config = ExperimentConfig::read(&folder.join("experiment.toml")).unwrap();
    let experiment = Experiment::open(config, &folder).unwrap();
    let fits = experiment.fits().unwrap();
    assert!(fits.len() == 6 && fits.iter().all(|(_, _, refusal)| refusal.is_none()), "{fits:?}");
}
