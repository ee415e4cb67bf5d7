# The suite of every transport over real verbs, bare and with the fault
# transport around it.  What a memory checker could say, it says on the host.
# Timeout: 3600
. test/rdma_vm/guest/lib.sh

# Half of the donor's regions are in huge pages.
echo 8 >/proc/sys/vm/nr_hugepages
export RBP_CONFORMANCE_ADDRESS=$donor_address RBP_TEST_SLOW=30 TESTDIR=$dir
exec "${as_postgres[@]}" "$RBP_CONFORMANCE" verbs fault-verbs
