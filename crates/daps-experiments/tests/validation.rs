//! The validation commands' own claims, at a size that a test can afford.

use daps_experiments::validate::{gaussian, gmm, mean_and_error, toy};

#[test]
fn gaussian_checks_all_agree() {
    let settings = gaussian::Settings { samples: 2000, intervals: 1600, seed: 1 };
    let report = gaussian::run(settings, &mut ()).unwrap();
    for check in &report.checks {
        assert!(check.passed, "{check:?}");
    }
    for row in &report.coverage {
        assert!(row.passed, "{row:?}");
    }
    assert!(report.passed() && report.checks.len() > 30 && report.coverage.len() == 6);
    // The shipped presets are not the posterior, and the report says so.
    let distance = |name: &str| {
        report.checks.iter().find(|c| c.name == name).and_then(|c| c.distance).expect("a distance")
    };
    assert!(distance("official DAPS-1k, replay") > 0.02);
    assert!(distance("Tweedie + r(sigma), 5 levels") < 1e-4);
}

/// The recorded problems of the mixture test bed: ours minus recorded, paired, for methods that run fast.
#[test]
fn recorded_mixture_problems_give_the_recorded_distances() {
    let text = include_str!("../../../tests/golden/gmm.json");
    let all: Vec<gmm::Instance> = serde_json::from_str(text).unwrap();
    let some: Vec<gmm::Instance> = all.into_iter().filter(|i| i.dim == 8 && i.seed < 6).collect();
    assert_eq!(some.len(), 18);
    let methods = ["exact-sigma", "tweedie-full", "oracle", "floor"].map(str::to_owned).to_vec();
    let settings = gmm::Settings { samples: 500, levels: 100, methods, seed: 0 };
    let (scores, clouds) = gmm::run(&some, &settings, &mut ()).unwrap();
    assert_eq!(clouds.len(), 5);
    let of = |method: &str| scores.iter().filter(|s| s.method == method).collect::<Vec<_>>();
    for method in ["exact-sigma", "tweedie-full"] {
        let scores = of(method);
        let (difference, error) =
            mean_and_error(&scores.iter().map(|s| s.w1 - s.recorded.unwrap()).collect::<Vec<_>>());
        let mean = mean_and_error(&scores.iter().map(|s| s.w1).collect::<Vec<_>>()).0;
        assert!(
            difference.abs() < 0.15 * mean + 2.0 * error,
            "{method}: {difference} ± {error}, mean {mean}"
        );
    }
    // The loop with the exact conditional is exact: its distance is that of two exact sample sets.
    let paired: Vec<f64> = of("oracle").iter().zip(of("floor")).map(|(o, f)| o.w1 - f.w1).collect();
    let (difference, error) = mean_and_error(&paired);
    assert!(difference.abs() < 3.5 * error, "oracle minus floor: {difference} ± {error}");
}

#[test]
fn random_problems_are_what_they_say() {
    let instance = gmm::Instance::random(80, 4, 3).unwrap();
    let dot = |i: usize, j: usize| instance.v[i].iter().zip(&instance.v[j]).map(|(a, b)| a * b).sum::<f64>();
    for i in 0..4 {
        for j in 0..4 {
            assert!((dot(i, j) - f64::from(u8::from(i == j))).abs() < 1e-12);
        }
    }
    assert!(instance.singular.windows(2).all(|w| w[0] >= w[1]));
    assert!((instance.weights.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    let again = gmm::Instance::random(80, 4, 3).unwrap();
    assert_eq!((again.y, again.sigma_y), (instance.y, instance.sigma_y));
}

#[test]
fn daps_beats_dps_on_the_toy() {
    let toy = toy::run(toy::Settings { samples: 150, levels: 200, seed: 0 }, &mut ()).unwrap();
    let of = |name: &str| toy.outcomes.iter().find(|o| o.method == name).unwrap();
    assert!(of("daps").right_mode >= 0.9, "{}", of("daps").right_mode);
    for dps in ["dps-sde", "dps-ode"] {
        assert!(of("daps").w2_last <= 0.5 * of(dps).w2_last, "{dps}");
    }
    assert!(of("exact").w2_last < of("daps").w2_last);
}

/// The exact loop stays within chance at any number of levels, and the approximations' prices are where they are known to be:
/// tokens apart from each other are nearly enough for gates, and the Hamming law is further off.
#[test]
fn the_discrete_loop_draws_the_enumerated_posterior() {
    let settings =
        daps_experiments::validate::discrete::Settings { samples: 4000, levels: vec![1, 12], seed: 1 };
    let scores = daps_experiments::validate::discrete::run(&settings, &mut ()).unwrap();
    assert_eq!(scores.len(), 18);
    assert!(scores.iter().all(daps_experiments::validate::discrete::Score::agrees), "{scores:#?}");
    let of = |task: &str, estimate: &str| {
        scores.iter().find(|s| s.task == task && s.estimate == estimate && s.levels == 12).unwrap()
    };
    for task in ["xor", "and"] {
        assert!(of(task, "marginals").distance < 0.6 * of(task, "hamming").distance, "{scores:#?}");
        assert!(of(task, "hamming").distance > 2.0 * of(task, "hamming").bound, "{scores:#?}");
    }
}
