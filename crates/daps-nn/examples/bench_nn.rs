//! Times the layers and prints one JSON object per line. Arguments choose kinds: gemm, conv, norm, attention.

use daps_nn::bench::{self, Effort, Record};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let kinds: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |kind: &str| kinds.is_empty() || kinds.iter().any(|k| k == kind);
    let effort = Effort::default();
    let print = |records: &[Record]| -> Result<(), serde_json::Error> {
        for record in records {
            println!("{}", serde_json::to_string(record)?);
        }
        Ok(())
    };
    if wanted("gemm") {
        print(&bench::peak(effort)?)?;
    }
    if wanted("conv") {
        print(&bench::convolutions(effort)?)?;
    }
    if wanted("norm") {
        print(&bench::norms(effort)?)?;
    }
    if wanted("attention") {
        print(&bench::attentions(effort)?)?;
    }
    Ok(())
}
