// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the primary is, on the command line.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use dlock_client::Address;
pub use dlock_client::FabricChoice as Fabric;
use dlock_core::wire::fabric::{listed, FabricKind};

/// The environment variable for [`Where::fabric`].
const FABRIC_VARIABLE: &str = "DLOCK_FABRIC";
/// The environment variable for [`Where::address`].
pub const ADDRESS_VARIABLE: &str = "DLOCK_ADDRESS";

/// Removes empty variables, so that they count as unset, as a unit or a script that clears them
/// wants. To be called while this is the only thread.
pub fn drop_empty_variables() {
    for name in [ADDRESS_VARIABLE, FABRIC_VARIABLE] {
        if std::env::var_os(name).is_some_and(|value| value.is_empty()) {
            std::env::remove_var(name);
        }
    }
}

/// Where the primary is.
#[derive(Clone, Debug, clap::Args)]
pub struct Where {
    /// Where the primary is: IP, IP:PORT or HOST:PORT, IPv6 in brackets before a port; with commas
    /// between them: where it and its successors are. Without it: what DLOCK_PRIMARIES says, else
    /// 127.0.0.1:21616.
    #[arg(long, env = ADDRESS_VARIABLE, value_name = "ADDRESS", value_delimiter = ',')]
    pub address: Vec<Address>,
    /// How lock operations travel.
    #[arg(
        long,
        env = FABRIC_VARIABLE,
        value_parser = fabric_name(),
        default_value = "auto",
        help = fabric_help()
    )]
    pub fabric: Fabric,
}

fn fabric_help() -> String {
    let order = listed(FabricKind::ALL, "and");
    format!("How lock operations travel; auto: the first of {order} that works from here")
}

/// Reads the name of a fabric.
pub fn fabric_name() -> impl TypedValueParser<Value = Fabric> {
    PossibleValuesParser::new(Fabric::all().map(Fabric::name)).try_map(|name| name.parse())
}
