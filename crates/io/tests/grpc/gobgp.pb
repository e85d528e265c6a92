
¯
gobgp.protoapipb"
GetBgpRequest"7
GetBgpResponse%
global (2.apipb.GlobalRglobal"ƒ
Global
asn (Rasn
	router_id (	RrouterId
listen_port (R
listenPort)
listen_addresses (	RlistenAddresses2A
GobgpApi5
GetBgp.apipb.GetBgpRequest.apipb.GetBgpResponsebproto3