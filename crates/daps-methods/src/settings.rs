//! Settings of methods as tables of a configuration.

use daps_core::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

/// A budget beside a schedule that leaves nothing for it to say.
pub(crate) fn void_budget(method: &str) -> Error {
    Error::invalid(format!("{method}.budget"), "no schedule beside it", "one that makes it void")
}

/// As a table.
pub(crate) fn to_table(value: &impl Serialize) -> Result<Table> {
    Table::try_from(value).map_err(|e| Error::invalid("settings", "a table that TOML can hold", e))
}

/// As a value of a table.
pub(crate) fn to_value(value: &impl Serialize) -> Result<Value> {
    Value::try_from(value).map_err(|e| Error::invalid("settings", "values that TOML can hold", e))
}

/// Takes a name out of a table.
pub(crate) fn text(method: &str, table: &mut Table, key: &str) -> Result<Option<String>> {
    match table.remove(key) {
        None => Ok(None),
        Some(Value::String(s)) => Ok(Some(s)),
        // A budget is a name that may look like a number.
        Some(Value::Integer(n)) if key == "budget" => Ok(Some(n.to_string())),
        Some(other) => Err(Error::invalid(format!("{method}.{key}"), "a name in quotes", other)),
    }
}

/// A method from a table that is complete.
pub(crate) fn read<T: DeserializeOwned>(method: &str, table: &Table) -> Result<T> {
    table.clone().try_into().map_err(|e: toml::de::Error| {
        Error::invalid(format!("settings of {method}"), "a valid table", e.message().trim())
    })
}
